"""Who holds the card: the pure machine, its controller, and the edges it acts through."""
