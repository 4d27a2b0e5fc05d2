"""Networks of Caffe, read from `.prototxt` files."""
