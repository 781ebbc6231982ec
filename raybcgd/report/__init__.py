"""`raybcgd report`: what runs have come to, on one page."""
