"""Looking after the tables: `maintenance` sorts them, deletes old versions, makes one anew;
`health` says whether all is well."""
