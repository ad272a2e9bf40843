"""Bilevel problems: one problem or many at once, their losses, and checks of both."""
