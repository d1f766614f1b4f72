"""The launcher's process: it answers the ranks of an emulated cluster and prices what they did."""
