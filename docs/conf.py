"""Settings of the API documentation: `make docs` writes it to docs/build/index.html, from the docstrings."""

import torch_transpose

project = "torch_transpose"
version = release = torch_transpose.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_typehints = "description"
exclude_patterns = ["build"]
html_theme = "alabaster"
html_theme_options = {"description": torch_transpose.__doc__.splitlines()[0] if torch_transpose.__doc__ else ""}
