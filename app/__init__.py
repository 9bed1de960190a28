"""The tensortap service."""
