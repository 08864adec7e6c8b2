"""The static site of the leaderboard."""
