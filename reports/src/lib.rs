//! Record schema, metrics and tables.
