"""Model files into graphs: one room for each format, loaded when it is asked for.

``smelt.importers.caffe`` reads prototxt and caffemodel, ``smelt.importers.onnx`` reads ONNX. This
room imports neither, so that a program pays only for the format that it reads.
"""

__all__: list[str] = []
