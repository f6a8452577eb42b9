"""Caffe's prototxt and caffemodel into a graph, in the current and in the V1 format.

``import_caffe`` reads a network, ``read_mean`` a mean image; ``new_message`` gives an empty message
of Caffe's schema to write files with (``new_message("NetParameter")``), since the schema is built
here and no generated module exists.
"""

from smelt.importers.caffe._files import read_mean
from smelt.importers.caffe._import import import_caffe
from smelt.importers.caffe._schema import new_message

__all__ = ["import_caffe", "new_message", "read_mean"]
