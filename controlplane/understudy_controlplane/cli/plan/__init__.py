"""`understudy plan`: what a number of spares, an interval or a way to recover is worth."""
