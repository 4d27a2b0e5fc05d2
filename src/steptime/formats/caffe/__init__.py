"""Networks of Caffe: a closed room, which only `importers` knows."""
