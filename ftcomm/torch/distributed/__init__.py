"""The backend "ftcomm" of torch.distributed."""
