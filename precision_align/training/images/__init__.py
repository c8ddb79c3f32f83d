"""Two rendered images: how far apart, where, and in what way."""
