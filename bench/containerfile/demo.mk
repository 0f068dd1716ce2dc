# Compiles brotli's C sources as a command and a library.
objects := $(patsubst %.c,%.o,$(wildcard c/common/*.c c/dec/*.c c/enc/*.c c/tools/*.c))

brotli: $(objects)
	gcc -o $@ $^ -lm

libbrotli.a: $(filter-out c/tools/%,$(objects))
	ar rcs $@ $^

%.o: %.c
	gcc -O2 -Ic/include -c -o $@ $<

install: brotli libbrotli.a
	install brotli /usr/local/bin
	install -m 644 libbrotli.a /usr/local/lib
