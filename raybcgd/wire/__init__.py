"""What travels: declared uploads become slices and bytes."""
