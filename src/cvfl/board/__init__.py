"""`cvfl board`: a page in the browser that lists runs, follows those under way, and compares any of them."""
