"""The Caffe importer: prototxt and caffemodel files of the current and the V1 format.

``import_caffe`` reads a network and ``read_mean`` a mean image. ``new_message`` returns an empty
message of Caffe's schema for writing files (``new_message("NetParameter")``); the schema is built
at run time and has no generated module.
"""

from smelt.importers.caffe._files import read_mean
from smelt.importers.caffe._import import import_caffe
from smelt.importers.caffe._schema import new_message

__all__ = ["import_caffe", "new_message", "read_mean"]
