"""The documentation site: what MkDocs adds to the pages in docs/. Build it with `make docs`."""
