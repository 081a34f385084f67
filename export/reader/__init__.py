"""The small model that reads clean printed pages: documents drawn with their truth, training, and measurement."""
