"""Where kernels run: the Device interface, launch descriptions, and the devices themselves."""
