ln a b
