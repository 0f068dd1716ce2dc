package plan

import (
	"fmt"
	"slices"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
)

const (
	// stackable is how many layers the overlay driver of Docker mounts over each other at most.
	stackable = 127
	// leastForWheels is what the wheels get beside a base of many layers, as vendors make them, when the recipe does not
	// say how many layers there may be.
	leastForWheels = 12
)

// group spreads the wheels over the layers that the base and the other steps, which make a layer each, leave to them.
func (n *planner) group(others int) ([]python.Group, error) {
	limit := n.recipe.Image.MaxLayers
	room := limit - n.base.Layers - others
	if limit == recipe.DefaultMaxLayers {
		limit = stackable
		room = max(room, min(leastForWheels, stackable-n.base.Layers-others))
	}
	if n.lock.Python == nil {
		return nil, n.checkLayers(others, limit)
	}
	prefer, err := n.prefer()
	if err != nil {
		return nil, err
	}
	if least := 1 + len(prefer); room < least {
		return nil, n.checkLayers(others+least, limit)
	}
	return python.GroupPreferred(n.items(), room, prefer), nil
}

// roomForConda is how many layers conda packages may have: all that base and other steps leave, or two thirds of it where there
// are wheels, too.
func (n *planner) roomForConda(others int) int {
	const own = 3 // what the environment, the link scripts and the activation make
	room := n.recipe.Image.MaxLayers - n.base.Layers - others - own
	if n.recipe.Image.MaxLayers == recipe.DefaultMaxLayers {
		room = max(room, min(leastForWheels, stackable-n.base.Layers-others-own))
	}
	if len(n.wheels) > 0 {
		room = room * 2 / 3
	}
	return room
}

// prefer returns the normalised names of the wheels whose files go before those of others.
func (n *planner) prefer() ([]string, error) {
	var names []string
	for _, wanted := range n.recipe.Python.Prefer {
		name := python.NormalizeName(wanted)
		if !slices.ContainsFunc(n.wheels, func(w lock.Wheel) bool { return python.NormalizeName(w.Name) == name }) {
			return nil, fault.Hint(fmt.Errorf("python.prefer names %s, of which the lock has no wheel", wanted),
				"name a package of pylock.toml that is not compiled, or take the name out")
		}
		names = append(names, name)
	}
	return names, nil
}

// checkLayers refuses images of more layers than there may be. needed is how many go on the base at least.
func (n *planner) checkLayers(needed, limit int) error {
	if n.base.Layers+needed <= limit {
		return nil
	}
	return fault.Hint(
		fmt.Errorf("the base has %d layers and the recipe needs %d more, and the image may have %d", n.base.Layers, needed, limit),
		"raise max-layers under [image], or make the base one layer: `sconce copy BASE tar:base.tar`, then image = \"tar:base.tar\" under [base]")
}
