"""One file for each tool, with `answer(request)`, which gives a document that is JSON.

Raises EstimatorError with the sentence that says what is wrong. Reports are imported where they are made.
"""
