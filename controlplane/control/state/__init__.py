"""The whole desired state as one document: written out, compared, applied (docs/state.md)."""
