"""The search for the choices that the paper's experiments leave open."""
