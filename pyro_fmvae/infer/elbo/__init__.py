"""The custom ELBO: recognition of a program's structure, and the terms of the bound."""
