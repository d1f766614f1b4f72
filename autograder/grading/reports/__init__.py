"""Reports from the gradebook: exports to other systems, how the class stands, checklists, feedback pages."""
