"""The tables and figures of the four papers, with our results next to theirs."""
