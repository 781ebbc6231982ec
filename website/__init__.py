"""MkDocs hooks that add generated content to the pages in docs/. Build the site with `make docs`."""
