"""Who fulfils `kit_jupyter.provider`: codecs for four wires, the local model, replay, bridges."""
