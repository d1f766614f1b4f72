"""What students hand in, collected and read strictly."""
