"""What ties the core to a Django process: threads, rows, discovery."""
