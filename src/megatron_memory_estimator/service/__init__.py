"""Questions as JSON, answers as JSON documents: what every server and the page in a browser share."""
