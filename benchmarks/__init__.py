"""Tables, figures and speed measurements, each with its command."""
