"""The questions that people ask (predict, fit, choose, serve, ...): one function each."""
