"""What a student reads about a submission."""
