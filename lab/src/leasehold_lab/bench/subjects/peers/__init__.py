"""Other lock libraries, each used as its documentation says."""
