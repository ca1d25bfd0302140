"""Where each request's KV lives: blocks, tables, prefix caches."""
