"""The application: the command line, its commands, recipes of models, runs and the explorer's page."""
