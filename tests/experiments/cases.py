"""A classifier made by hand."""

from calibrant.methods import Fitted


class Fixed(Fitted):
    """Gives what it was told, on the training part."""

    failure = None

    def __init__(self, probs, **extras):
        self.given, self.extras = probs, extras

    def probs(self, inputs):
        return self.given
