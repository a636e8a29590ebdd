"""Who plays: rules by name, recurrent and feed-forward actors and critics."""
