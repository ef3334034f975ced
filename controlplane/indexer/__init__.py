"""The precise index: one process per router host that knows from KV events which engine holds what. Imports no Django."""
