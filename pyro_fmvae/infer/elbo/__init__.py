"""The custom ELBO, whole: what it recognises in a program, and what each part adds to the bound."""
