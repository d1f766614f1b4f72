"""The launcher's process: it answers the ranks of an emulated cluster and prices their work and communication."""
