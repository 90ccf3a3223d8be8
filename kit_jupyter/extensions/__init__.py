"""Who fulfils `kit_jupyter.extension`: small, complete guests."""
