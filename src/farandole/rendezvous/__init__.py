"""How ranks find each other: their place in the job, an authenticated store to meet at, and links between them."""
