"""Models as flat vectors, and the blocks that the vectors are divided into."""
