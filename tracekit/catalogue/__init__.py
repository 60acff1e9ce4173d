"""What is known of GPUs and models before anything runs: data files and the look-up of names as people write them."""
