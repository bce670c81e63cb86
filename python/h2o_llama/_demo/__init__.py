"""The demo: hidden keys in a real document, prefilled dense and with H2O."""
