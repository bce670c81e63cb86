"""What each head kept of a document, as tables, highlighted terminal text and an HTML page."""
