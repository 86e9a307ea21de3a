#!/bin/sh
# A step of a slow simulation: ten rows in four seconds.
for row in 1 2 3 4 5 6 7 8 9 10; do
    echo "{\"energy\": $(($1 * 100 + row))}"
    sleep 0.4
done
