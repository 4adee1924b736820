"""The flows of a run over the ports: a step is routed, a tool is called, what a server has is relayed."""
